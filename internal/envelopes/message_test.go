package envelopes

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
)

// TestMessage: what is encoded is decoded, with or without a time and lists.
func TestMessage(t *testing.T) {
	for _, message := range []migration.Message{
		{Kind: migration.KindReserved},
		{
			Kind: migration.KindReserved, Error: "no", Incarnation: "i", At: time.Unix(7, 9),
			Problems: []migration.Problem{{What: "memory", Why: "too little", Remedy: "wait"}},
			Spans:    []migration.Span{{Phase: "restore"}},
		},
	} {
		encoded, err := Encode(message)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(encoded); err != nil || !reflect.DeepEqual(got, message) {
			t.Errorf("%+v, %v, want %+v", got, err, message)
		}
	}
}

// TestLists: a list of another node is read up to a length.
func TestLists(t *testing.T) {
	var list []string
	for document, want := range map[string]string{
		"":                    "",
		`["a"]`:               "",
		`{`:                   "unexpected end",
		entries(MaxParts):     "",
		entries(MaxParts + 1): "at most 1024",
	} {
		err := DecodeList([]byte(document), &list)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v", document, err)
		}
	}
	if _, err := Decode(&api.Message{Kind: "reserved", SpansJson: []byte("{")}); err == nil ||
		!strings.Contains(err.Error(), `message "reserved"`) {
		t.Errorf("spans that are none: %v", err)
	}
}

func entries(length int) string {
	document, _ := json.Marshal(make([]string, length)) // strings can be encoded
	return string(document)
}

// FuzzDecode: a message of another node is refused, or says again what it has said.
func FuzzDecode(f *testing.F) {
	f.Add("reserved", "", []byte(`[{"What":"memory","Why":"too little"}]`), []byte(nil), int64(0))
	f.Add("running", "", []byte(nil), []byte(`[{"Step":"restore","Begin":"2026-01-01T00:00:00Z"}]`), int64(1))
	f.Add("failed", "no", []byte(`[null]`), []byte(`{`), int64(-1))
	f.Fuzz(func(t *testing.T, kind, text string, problems, spans []byte, at int64) {
		message, err := Decode(&api.Message{Kind: kind, Error: text, ProblemsJson: problems,
			SpansJson: spans, AtUnixNanoseconds: at})
		if err != nil {
			return
		}
		if len(message.Problems) > MaxParts || len(message.Spans) > MaxParts {
			t.Fatalf("%d problems, %d spans", len(message.Problems), len(message.Spans))
		}
		encoded, err := Encode(message)
		if err != nil {
			return // a time that JSON has no form for
		}
		if _, err := Decode(encoded); err != nil {
			t.Errorf("what was decoded cannot be encoded and decoded: %v", err)
		}
	})
}
