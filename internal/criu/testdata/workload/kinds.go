package main

import (
	"fmt"
)

func do(kind string) error {
	return fmt.Errorf("unknown kind %q", kind)
}
