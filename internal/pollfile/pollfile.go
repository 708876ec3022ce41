// Package pollfile reads poll definitions, YAML or JSON, as operators write
// them.
package pollfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"

	"paredao/internal/vote"
)

// Definition is a poll and when it takes votes.
type Definition struct {
	Poll   vote.Poll
	Window vote.Window
}

// MaxBytes bounds a file: a hundred polls with a thousand options. (The reader
// takes some hundred bytes of memory for each byte.)
const MaxBytes = 4 << 20

// Bounds of what a YAML reader pays for more than once: it carries a path for
// each level of nesting, and reads again what an alias stands for.
const (
	maxDepth   = 16
	maxAliases = 100
	maxError   = 8 << 10 // bytes
)

type file struct {
	Polls []poll `yaml:"polls"`
}

type poll struct {
	ID       text     `yaml:"id"`
	Title    text     `yaml:"title"`
	Options  []option `yaml:"options"`
	OpensAt  text     `yaml:"opens_at"`
	ClosesAt text     `yaml:"closes_at"`
	Results  text     `yaml:"results"`
	// The contract knows these; this version must not pass over them.
	Limit   any `yaml:"limit"`
	Ballots any `yaml:"ballots"`
}

type option struct {
	ID   text `yaml:"id"`
	Name text `yaml:"name"`
}

// text is a scalar as it was written. YAML reads 007, 1.50 or 0x10 as numbers,
// and an id must not become another one.
type text string

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (t *text) UnmarshalYAML(n ast.Node) error {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		*t = text(n.GetToken().Value)
		return nil
	}
	var s string
	if err := yaml.NodeToValue(n, &s, yaml.Strict()); err != nil {
		return err
	}
	*t = text(s)
	return nil
}

// Parse reads a whole file. The error says everything that is wrong with it, on
// one line, and then no definition is returned.
func Parse(r io.Reader) ([]Definition, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read polls: %w", err)
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("the polls file is larger than %d bytes", MaxBytes)
	}
	b = bytes.TrimPrefix(b, []byte("\ufeff")) // some editors put a byte order mark there
	if !utf8.Valid(b) {
		return nil, errors.New("the polls file is not UTF-8")
	}
	if err := checkShape(string(b)); err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	var f file
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the polls file is empty")
		}
		return nil, fmt.Errorf("the polls file: %s", cut(oneLine(yaml.FormatError(err, false, false))))
	}
	if err := dec.Decode(&file{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("the polls file has more than one document")
	}
	if len(f.Polls) == 0 {
		return nil, errors.New("the polls file has no polls")
	}
	var defs []Definition
	var errs []string
	seen := map[text]bool{}
	for i, p := range f.Polls {
		def, err := p.definition()
		if seen[p.ID] {
			err = errors.Join(err, errors.New("the id stands twice"))
		}
		seen[p.ID] = true
		if err != nil {
			errs = append(errs, fmt.Sprintf("poll %d (%.80q): %s", i+1, p.ID, oneLine(err.Error())))
		}
		defs = append(defs, def)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("the polls file: %s", cut(strings.Join(errs, "; ")))
	}
	return defs, nil
}

// checkShape refuses a file whose cost would not be in proportion to its length.
func checkShape(text string) error {
	depth, aliases, entries, line := 0, 0, 0, 0
	for _, t := range lexer.Tokenize(text) {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.AliasType:
			aliases++
		case token.SequenceEntryType:
			if t.Position.Line != line {
				entries, line = 0, t.Position.Line
			}
			entries++
		default: // costs what it is long
		}
		if depth > maxDepth || entries > maxDepth {
			return fmt.Errorf("the polls file is nested deeper than %d", maxDepth)
		}
		if aliases > maxAliases {
			return fmt.Errorf("the polls file has more than %d aliases", maxAliases)
		}
	}
	return nil
}

// cut bounds an error: a line of megabytes helps no one.
func cut(s string) string {
	if len(s) <= maxError {
		return s
	}
	return strings.ToValidUTF8(s[:maxError], "") + " ... and more"
}

// oneLine makes an error fit for a line of a log or a terminal: it may quote
// the file.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

func (p poll) definition() (Definition, error) {
	def := Definition{Poll: vote.Poll{ID: string(p.ID), Title: string(p.Title), Results: string(p.Results)}}
	if def.Poll.Title == "" {
		def.Poll.Title = string(p.ID)
	}
	if def.Poll.Results == "" {
		def.Poll.Results = vote.ResultsLive
	}
	for _, o := range p.Options {
		if o.Name == "" {
			o.Name = o.ID
		}
		def.Poll.Options = append(def.Poll.Options, vote.Option{ID: string(o.ID), Name: string(o.Name)})
	}
	var errs []error
	if p.Limit != nil {
		errs = append(errs, errors.New("limit is not supported by this version"))
	}
	if p.Ballots != nil {
		errs = append(errs, errors.New("ballots are not supported by this version"))
	}
	var err1, err2 error
	def.Window.Opens, err1 = parseTime("opens_at", p.OpensAt)
	def.Window.Closes, err2 = parseTime("closes_at", p.ClosesAt)
	errs = append(errs, err1, err2, def.Poll.Validate(), def.Window.Validate())
	return def, errors.Join(errs...)
}

func parseTime(field string, s text) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, string(s))
	if err != nil {
		return t, fmt.Errorf("%s %.40q is no time with a zone like 2026-01-20T22:00:00-03:00", field, s)
	}
	if t.UnixMilli() <= 0 || t.Year() > 9999 {
		return t, fmt.Errorf("%s %.40q is out of range", field, s)
	}
	return t.UTC().Truncate(time.Millisecond), nil
}
