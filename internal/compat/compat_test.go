package compat_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/godwit/godwit/internal/compat"
)

func TestAgree(t *testing.T) {
	for _, one := range []struct {
		ours, theirs compat.Range
		want         int // 0: none
		remedy       string
	}{
		{compat.Range{Oldest: 9, Newest: 9}, compat.Range{Oldest: 9, Newest: 9}, 9, ""},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{Oldest: 9, Newest: 9}, 9, ""},
		{compat.Range{Oldest: 9, Newest: 9}, compat.Range{Oldest: 9, Newest: 10}, 9, ""},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{Oldest: 10, Newest: 12}, 10, ""},
		{compat.Range{Oldest: 10, Newest: 11}, compat.Range{Oldest: 8, Newest: 9},
			0, "upgrade the other node"},
		{compat.Range{Oldest: 8, Newest: 9}, compat.Range{Oldest: 10, Newest: 11}, 0, "upgrade this node"},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{}, 0, "upgrade the other node"},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{Oldest: 11, Newest: 9}, 0, ""},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{Oldest: -1, Newest: math.MinInt}, 0, ""},
		{compat.Range{Oldest: 9, Newest: 10}, compat.Range{Oldest: 0, Newest: math.MaxInt}, 10, ""},
	} {
		got, err := compat.Agree(one.ours, one.theirs)
		if got != one.want || (err == nil) != (one.want != 0) {
			t.Errorf("%v and %v: %d, %v; want %d", one.ours, one.theirs, got, err, one.want)
		}
		if err != nil && (!errors.Is(err, compat.ErrIncompatible) ||
			!strings.Contains(err.Error(), one.remedy)) {
			t.Errorf("%v and %v: error %v, want %q in it", one.ours, one.theirs, err, one.remedy)
		}
	}
}
