package blobstore

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxName    = 700 // bytes; with the URL's prefix below Azure's 1024
	maxElement = 255 // bytes; what file systems take
)

// checkName refuses names that one of the stores could not keep, or would keep
// somewhere else.
func checkName(name string) error {
	if why := refuseName(name); why != "" {
		return fmt.Errorf("object name %q %s", shortened(name), why)
	}
	return nil
}

// checkPrefix is checkName for the prefix of a listing, whose last element may
// be cut off anywhere or be missing.
func checkPrefix(prefix string) error {
	if prefix == "" || refuseName(prefix) == "" {
		return nil
	}
	// One more letter makes a whole name of it, whether it ends with a slash,
	// with a dot, or with a letter.
	if why := refuseName(prefix + "x"); why != "" {
		return fmt.Errorf("prefix %q %s", shortened(prefix), why)
	}
	return nil
}

// refuseName says what is wrong with the name, or nothing. Elements that begin
// with a dot are refused as a whole: that covers "." and "..", and keeps hidden
// files, the store's own among them, apart from objects. Azure takes off a dot
// at the end.
func refuseName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > maxName:
		return fmt.Sprintf("is longer than %d bytes", maxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	}
	for _, r := range name {
		if r == '\\' || !unicode.IsPrint(r) {
			return fmt.Sprintf("must not contain %q", r)
		}
	}
	for element := range strings.SplitSeq(name, "/") {
		switch {
		case element == "":
			return "must not begin or end with a slash, or have two in a row"
		case strings.HasPrefix(element, "."):
			return "must not have an element that begins with a dot"
		case strings.HasSuffix(element, "."):
			return "must not have an element that ends with a dot"
		case len(element) > maxElement:
			return fmt.Sprintf("has an element longer than %d bytes", maxElement)
		}
	}
	return ""
}

func shortened(name string) string {
	const longest = 100
	if len(name) > longest {
		return name[:longest] + "…"
	}
	return name
}
