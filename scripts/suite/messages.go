package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// How much is told of a test that failed.
const (
	linesOfTest    = 60
	linesOfMessage = 12
	linesOfCrash   = 40
	bytesOfLine    = 1000
	bytesOfFirst   = 300
)

var (
	// frame is what go test says of its own, which is said otherwise here.
	frame = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME) |--- (PASS|FAIL|SKIP): |exit status \d+\s*$|FAIL\s*$|FAIL\t\S+\t[\d.]+s\s*$)`)
	// head begins a message of a test, which may have more lines.
	head = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
	// crash begins the end of a program.
	crash = regexp.MustCompile(`^(panic: |fatal error: |SIG[A-Z]+: |WARNING: DATA RACE)`)
)

// bounded is what a test has said, shortened: of messages that are long, as logs are, their beginning and end.
func bounded(output []string) []string {
	var all, message []string
	most := linesOfMessage
	end := func() {
		all = append(all, shortened(message, most)...)
		message, most = nil, linesOfMessage
	}
	for line := range strings.Lines(strings.Join(output, "")) {
		switch {
		case frame.MatchString(line):
			continue
		case crash.MatchString(line):
			end()
			most = linesOfCrash
		case head.MatchString(line):
			end()
		}
		message = append(message, cut(strings.TrimRight(line, "\n"), bytesOfLine)+"\n")
	}
	end()
	return shortened(all, linesOfTest)
}

// shortened leaves out lines after three quarters of what there may be.
func shortened(lines []string, most int) []string {
	if len(lines) <= most {
		return lines
	}
	first := most * 3 / 4
	last := most - first - 1
	between := fmt.Sprintf("    ... (%d lines)\n", len(lines)-first-last)
	return slices.Concat(lines[:first], []string{between}, lines[len(lines)-last:])
}

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// firstMessage is how a test's messages begin, on one line, behind a colon; what was first is mostly what all else follows from.
func firstMessage(output []string) string {
	for line := range strings.Lines(strings.Join(output, "")) {
		if head.MatchString(line) || crash.MatchString(line) {
			return ": " + cut(strings.TrimSpace(line), bytesOfFirst)
		}
	}
	return ""
}
