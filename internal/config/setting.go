package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// prefix begins the name of every variable of this project.
const prefix = "PAREDAO_"

// setting is one row of the table, and what the user said about it. As a
// [pflag.Value] it takes any text: values are checked in apply, where flag,
// variable and default meet.
type setting struct {
	group string // heading in --help
	name  string // of the flag, without dashes
	who   who    // the binaries that know it
	unit  string // of the value, in --help
	def   string // default as a user would write it; "" for none
	note  string // what "" means, in --help
	usage string

	parse func(text string) error  // checks and stores
	show  func(text string) string // hides secrets; nil if there are none

	text   string // what the user gave, by flag
	given  bool   // by flag or variable
	source string // the flag or variable that the value came from
}

// String is the text given by flag, or the default. It is part of pflag.Value.
func (s *setting) String() string {
	if s.given {
		return s.shown(s.text)
	}
	return s.def
}

// Set takes a flag's value. It is part of pflag.Value.
func (s *setting) Set(text string) error {
	s.text, s.given = text, true
	return nil
}

// Type is the value's unit. It is part of pflag.Value.
func (s *setting) Type() string { return s.unit }

func (s *setting) bind(fs *pflag.FlagSet) {
	fs.Var(s, s.name, s.usage+" ("+s.variable()+")")
}

func (s *setting) variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// apply decides the value (flag, else variable, else default) and parses it.
func (s *setting) apply(vars map[string]string) error {
	s.source = "--" + s.name
	if v := vars[s.variable()]; v != "" && !s.given {
		s.text, s.given, s.source = v, true, s.variable()
	}
	if !s.given {
		s.text = s.def
	}
	if s.text == "" && s.def == "" {
		return nil // optional, and left out
	}
	if err := s.parse(s.text); err != nil {
		return s.wrong(err.Error())
	}
	return nil
}

// wrong is the error for the value that the setting has.
func (s *setting) wrong(allowed string) *UsageError {
	return Usagef("wrong value %s for %s: %s", quote(s.shown(s.text)), s.source, allowed)
}

func (s *setting) shown(text string) string {
	if s.show != nil {
		return s.show(text)
	}
	return WithoutSecret(text)
}

// WithoutSecret hides the password of a URL that stands where none belongs, so
// that the text can be shown.
func WithoutSecret(text string) string {
	if strings.Contains(text, "://") || strings.Contains(text, "@") {
		return redact(text)
	}
	return text
}

// into makes a setting's parse function from a parser and a place.
func into[T any](dst *T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		v, err := parse(text)
		if err != nil {
			return err
		}
		*dst = v
		return nil
	}
}

// rows are the settings of one binary.
type rows []*setting

// get is the setting of that name, or an empty one if the binary has none.
func (r rows) get(name string) *setting {
	for _, s := range r {
		if s.name == name {
			return s
		}
	}
	return new(setting)
}

func (r rows) apply(vars map[string]string) error {
	for _, s := range r {
		if err := s.apply(vars); err != nil {
			return err
		}
	}
	return nil
}

// UsageError is a wrong flag, argument or value: one line, without secrets.
type UsageError struct{ message string }

// Usagef makes a UsageError. The message is to be one line and must hold no
// secret. Callers use it for what only they can check, like the text of a
// polls file.
func Usagef(format string, args ...any) *UsageError {
	return &UsageError{strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")}
}

// Error is the line to print.
func (e *UsageError) Error() string { return e.message }

// ExitCode is 2, the exit code for wrong use.
func (e *UsageError) ExitCode() int { return 2 }

type helpPrintedError struct{}

func (helpPrintedError) Error() string { return "help was printed" }
func (helpPrintedError) ExitCode() int { return 0 }

// ErrHelp says that --help or --version was asked for and has been printed:
// there is nothing more to do. It has an ExitCode method that returns 0.
var ErrHelp error = helpPrintedError{}

// FlagError makes a [*UsageError] from an error of pflag's Parse, for cobra's
// SetFlagErrorFunc too. Other errors are returned as they are. pflag's own
// text is not used, since it may repeat a value that is a secret: of
// "-redis-url=redis://:secret@host" it prints all. (A value that pflag itself
// refuses is shown; no flag of this package is of that kind.)
func FlagError(err error) error {
	var (
		missing *pflag.ValueRequiredError
		unknown *pflag.NotExistError
		syntax  *pflag.InvalidSyntaxError
		value   *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &missing):
		return Usagef("%s needs a value; see --help", dashes(missing.GetSpecifiedName()))
	case errors.As(err, &unknown):
		name := dashes(unknown.GetSpecifiedName())
		if len(unknown.GetSpecifiedShortnames()) > 1 {
			return Usagef("unknown flag %s (flags of more than one letter begin with --); see --help", name)
		}
		return Usagef("unknown flag %s; see --help", name)
	case errors.As(err, &syntax):
		return Usagef("bad flag syntax; flags are written --name=value or --name value; see --help")
	case errors.As(err, &value):
		return Usagef("wrong value %s for --%s: %v", quote(value.GetValue()), value.GetFlag().Name, value.Unwrap())
	default:
		return err
	}
}

// dashes writes a flag's name the way the user did, made safe to print.
func dashes(name string) string {
	name = WithoutSecret(name)
	if len(name) == 1 {
		return printable("-" + name)
	}
	return printable("--" + name)
}

// parseFlags reads args into rows, and answers --help and --version.
func parseFlags(p program, rows rows, args []string, version string, stdout io.Writer) error {
	fs := pflag.NewFlagSet(p.name, pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {} // printed below, where its error is seen
	for _, s := range rows {
		s.bind(fs)
	}
	showVersion := fs.Bool("version", false, "")

	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, help(p, rows)); err != nil {
			return fmt.Errorf("print help: %w", err)
		}
		return ErrHelp
	case err != nil:
		return FlagError(err)
	case *showVersion:
		if _, err := fmt.Fprintf(stdout, "%s %s\n", p.name, version); err != nil {
			return fmt.Errorf("print version: %w", err)
		}
		return ErrHelp
	case fs.NArg() > 0:
		return Usagef("unexpected argument %s; %s takes only flags, see --help", quote(WithoutSecret(fs.Arg(0))), p.name)
	}
	return nil
}

// Version is how a build is named: "1.2.0 (3f2a9c1, go1.26.0)". The Parse
// functions print it for --version after the binary's name; cobra's Version
// can hold it as well.
func Version(version, commit string) string {
	return fmt.Sprintf("%s (%s, %s)", version, commit, runtime.Version())
}

// environment makes a map of a list in the form of os.Environ. Of a variable
// that stands there twice the last counts, as with os/exec.
func environment(env []string) map[string]string {
	vars := make(map[string]string, len(env))
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			vars[k] = v
		}
	}
	return vars
}

// serviceLink matches the variables that Kubernetes sets for a Service whose
// name begins with "paredao". Nobody wrote them, so nobody is warned.
var serviceLink = regexp.MustCompile(`_SERVICE_HOST=|_SERVICE_PORT(_\w+)?=\d|_PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://|_PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=`)

// unknown warns of set variables with our prefix that no binary of the project
// knows. What another binary knows is no mistake: one environment file may
// serve all.
func unknown(vars map[string]string) []string {
	known := make(map[string]bool)
	for _, s := range table(new(Allinone), allinoneProgram) {
		known[s.variable()] = true
	}
	var warnings []string
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		if strings.HasPrefix(k, prefix) && !known[k] && vars[k] != "" && !serviceLink.MatchString(k+"="+vars[k]) {
			warnings = append(warnings, fmt.Sprintf("unknown variable %s is ignored; --help lists those that count", printable(k)))
		}
	}
	return warnings
}

// quote makes text safe and short enough for one line.
func quote(text string) string {
	const most = 120
	runes := 0
	for i := range text {
		if runes == most {
			return strconv.Quote(text[:i]) + "..."
		}
		runes++
	}
	return strconv.Quote(text)
}

// printable is text itself if it can stand on a line as it is, else quoted.
func printable(text string) string {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
