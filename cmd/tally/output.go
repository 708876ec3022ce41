package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

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

func (s *sheet) csv(w io.Writer) error {
	c := csv.NewWriter(w)
	c.UseCRLF = true // RFC 4180
	rows := append([][]string{s.head}, s.rows...)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = inert(cell)
		}
		if err := c.Write(cells); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	c.Flush()
	if err := c.Error(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// inert keeps a spreadsheet from running a cell as a formula, by the quote that
// marks text there (OWASP, CSV injection).
func inert(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r\n", rune(cell[0])) {
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

// printable keeps a poll's text from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || r == '\r' {
			return ' '
		}
		if !strconv.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}

// isTerminal tells whether w is a terminal that may be drawn on.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
