package config

import (
	"fmt"
	"strings"
)

// help is the text of --help: what the binary does, an example, and every
// setting under its group with unit, default and variable.
func help(p program, rows rows) string {
	var b strings.Builder
	b.WriteString(wrap(p.about, ""))
	fmt.Fprintf(&b, "\nUsage:\n  %s [flags]\n\nExample:\n  %s\n\n", p.name, p.example)
	b.WriteString(wrap("Each setting is a flag or an environment variable. The flag wins; an empty variable counts as unset. "+
		"Durations are written like 250ms, 5s or 10m.", ""))

	group := ""
	for _, s := range rows {
		if s.group != group {
			group = s.group
			fmt.Fprintf(&b, "\n%s:\n", group)
		}
		def := s.def
		if def == "" {
			def = s.note
		}
		fmt.Fprintf(&b, "  --%s %s\n", s.name, s.unit)
		b.WriteString(wrap(s.usage, "        "))
		b.WriteString(wrap(fmt.Sprintf("[default: %s] [%s]", def, s.variable()), "        "))
	}
	b.WriteString("\nOther flags:\n  -h, --help\n        print this text\n  --version\n        print the version\n")
	return b.String()
}

// wrap breaks text into lines of up to 80 columns that begin with indent.
func wrap(text, indent string) string {
	const width = 80
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
			b.WriteString(indent)
			column = len(indent)
		case column+1+len(word) > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}
