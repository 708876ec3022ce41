package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInert(t *testing.T) {
	for _, cell := range []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=", "＝1+1", "＋1", "－1", "＠SUM(A1)", `=cmd|' /C calc'!A0`,
	} {
		require.Equal(t, "'"+cell, inert(cell))
	}
	for _, cell := range []string{"", "0", "1.5", "Ana", "a=1", "'=1", "é", "\"=1", "🎉", "2026-01-20T22:00:00Z", "-"[:0]} {
		require.Equal(t, cell, inert(cell))
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                        "plain",
		"a\tb\nc\rd\ve\ff":             "a b c d e f",
		"\x1b[31mred\x1b[0m":           "\uFFFD[31mred\uFFFD[0m",
		"\x1b]0;title\a":               "\uFFFD]0;title\uFFFD",
		"\u009b31m\u0085\u0000\x7f\b":  "\uFFFD31m \uFFFD\uFFFD\uFFFD", // CSI and NEL are also single characters
		"\u202Ertl\u202C\u2066x\u2069": "\uFFFDrtl\uFFFD\uFFFDx\uFFFD",
		"line\u2028para\u2029":         "line para ",
		"Ça\u00a0va\u3000日本":           "Ça va 日本",
		"👨\u200d👩\u200d👧 ❤\ufe0f می\u200cخواهم": "👨\u200d👩\u200d👧 ❤\ufe0f می\u200cخواهم",
		"שלום e\u0301":  "שלום e\u0301",
		"\xff":          "\uFFFD",
		"\ufeffx\u00ad": "\uFFFDx\uFFFD",
	} {
		require.Equal(t, want, printable(text), "%q", text)
	}
}

func TestSheet(t *testing.T) {
	s := &sheet{head: []string{"id", "name"}}
	s.add("a", "x,y")
	s.add("b", `say "hi"`)
	s.add("", "")
	s.add("c", "one\ntwo\r\nthree\rfour")
	s.add("=d", " blank ")
	var csv, table strings.Builder
	require.NoError(t, s.csv(&csv))
	require.Equal(t, "id,name\r\na,\"x,y\"\r\nb,\"say \"\"hi\"\"\"\r\n,\r\nc,\"one\ntwo\r\nthree\rfour\"\r\n'=d, blank \r\n", csv.String())
	require.Equal(t, [][]string{
		{"id", "name"}, {"a", "x,y"}, {"b", `say "hi"`}, {"", ""}, {"c", "one\ntwo\r\nthree\rfour"}, {"'=d", " blank "},
	}, parseCSV(t, csv.String()))
	require.NoError(t, s.table(&table))
	require.Equal(t, "id  name\na   x,y\nb   say \"hi\"\n\nc   one two  three four\n=d   blank \n", table.String())
}
