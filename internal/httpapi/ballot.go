package httpapi

import (
	"bytes"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/utils"
)

// choice is what a body asks for.
type choice struct {
	Option *string `json:"option"`
	Class  *string `json:"class"`
}

// parseChoice reads the body of a vote: the option, which is borrowed from the
// request, and whether a class is named. It takes nothing that two parsers could
// read differently.
func parseChoice(c *fiber.Ctx) (option string, classed bool, err error) {
	h := &c.Request().Header
	if len(h.PeekAll(fiber.HeaderContentEncoding)) > 0 {
		return "", false, newProblem(http.StatusUnsupportedMediaType, "unsupported-content-encoding",
			"Send the body as it is, without Content-Encoding.")
	}
	// Not c.Body(): that would inflate what it is sent.
	body := c.Request().Body()
	contentType := h.ContentType()
	var got choice
	switch {
	case bytes.Equal(contentType, []byte("application/json")):
		if plain, ok := plainOption(body); ok {
			return utils.UnsafeString(plain), false, nil
		}
		got, err = parseJSON(body)
	default:
		media, _, mediaErr := mime.ParseMediaType(string(contentType))
		switch {
		case mediaErr == nil && media == "application/json":
			got, err = parseJSON(body)
		case mediaErr == nil && media == "application/x-www-form-urlencoded":
			got, err = parseForm(body)
		default:
			return "", false, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type",
				"Send application/json or application/x-www-form-urlencoded.")
		}
	}
	if err != nil {
		return "", false, err
	}
	if got.Option == nil {
		return "", false, malformed(`The member "option" is missing.`)
	}
	return *got.Option, got.Class != nil, nil
}

// plainOption reads the one form that nearly all bodies have, with an option that
// needs no decoding.
func plainOption(body []byte) ([]byte, bool) {
	option, ok := bytes.CutPrefix(body, []byte(`{"option":"`))
	if !ok {
		return nil, false
	}
	option, ok = bytes.CutSuffix(option, []byte(`"}`))
	for _, c := range option {
		ok = ok && c >= ' ' && c <= '~' && c != '"' && c != '\\'
	}
	return option, ok
}

func parseJSON(body []byte) (choice, error) {
	var got choice
	// This reader is strict by itself: names match to the letter, duplicates,
	// invalid UTF-8 and trailing data are errors.
	if err := json.Unmarshal(body, &got, json.RejectUnknownMembers(true)); err != nil {
		return got, malformed(`The body must be one JSON object like {"option":"ana"}, with no other member than "option" and "class".`)
	}
	return got, nil
}

func parseForm(body []byte) (choice, error) {
	var got choice
	// Form values are borrowed from the request unless copied; ParseQuery gets
	// a copy.
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return got, malformed("The form can't be read.")
	}
	for name, v := range values {
		if len(v) != 1 || !utf8.ValidString(v[0]) || strings.ContainsRune(v[0], 0) {
			return got, malformed("Each field of the form stands once, as valid text.")
		}
		switch name {
		case "option":
			got.Option = &v[0]
		case "class":
			got.Class = &v[0]
		default:
			return got, malformed(`The form has the fields "option" and "class", and no other.`)
		}
	}
	return got, nil
}
