package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cli"
	"github.com/godwit/godwit/internal/doctor"
)

// TestAlarms: ps and doctor show alarms, and both fail because of them.
func TestAlarms(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := alarmed(&out, nil); err != nil || out.Len() > 0 {
		t.Errorf("no alarms: %v, %s", err, out.String())
	}
	if _, is := alarmRequirement(nil); is {
		t.Error("doctor tells of alarms that there are not")
	}
	alarms := []*api.Alarm{{Kind: "double", Name: "web", Container: strings.Repeat("a", 64),
		Text: "it runs on b, too"}}
	var coded *cli.Error
	if err := alarmed(&out, alarms); !errors.As(err, &coded) || coded.Code != exitAlarm ||
		!strings.Contains(out.String(), "web") ||
		!strings.Contains(out.String(), "runs on b") {
		t.Errorf("ps: %v, %s", err, out.String())
	}
	line, is := alarmRequirement(alarms)
	if !is || line.Level != doctor.Required || line.Status != doctor.Missing ||
		!strings.Contains(line.Detail, "runs on b") {
		t.Errorf("doctor: %+v", line)
	}
}
