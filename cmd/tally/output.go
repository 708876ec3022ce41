package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// sheet is a list of equal things in the forms csv and table.
type sheet struct {
	head []string
	rows [][]string
}

func (s *sheet) add(cells ...string) { s.rows = append(s.rows, cells) }

func itoa[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// write writes value as JSON, or the sheet as CSV or as a table.
func (a *app) write(w io.Writer, value any, s *sheet) error {
	switch a.output {
	case "json":
		return writeJSON(w, value)
	case "csv":
		return s.csv(w)
	}
	return s.table(w)
}

func writeJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// csv writes RFC 4180. encoding/csv would change the line breaks within a cell.
func (s *sheet) csv(w io.Writer) error {
	var b strings.Builder
	for _, row := range append([][]string{s.head}, s.rows...) {
		for i, cell := range row {
			if i > 0 {
				b.WriteByte(',')
			}
			if cell = inert(cell); strings.ContainsAny(cell, ",\"\r\n") {
				cell = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
			}
			b.WriteString(cell)
		}
		b.WriteString("\r\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// formulaStarts begin what a spreadsheet runs: = + - @, their full-width forms,
// and blanks that some programs take off first.
const formulaStarts = "=+-@\uFF1D\uFF0B\uFF0D\uFF20\t\r\n"

// inert keeps a spreadsheet from running a cell as a formula, by the quote that
// marks text there (OWASP, CSV injection).
func inert(cell string) string {
	if first, _ := utf8.DecodeRuneInString(cell); cell != "" && strings.ContainsRune(formulaStarts, first) {
		return "'" + cell
	}
	return cell
}

func (s *sheet) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{s.head}, s.rows...) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		if _, err := fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// printable keeps a poll's text from steering the terminal: line breaks and all
// kinds of blanks become a blank, and other characters that show nothing are
// replaced, but for the joiners that emoji and some scripts are written with.
func printable(s string) string {
	const nonJoiner, joiner = '\u200C', '\u200D'
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case strconv.IsPrint(r), r == nonJoiner, r == joiner:
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// isTerminal tells whether w is a terminal that may be drawn on.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
