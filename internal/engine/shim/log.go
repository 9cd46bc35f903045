package shim

import (
	"encoding/json"
	"os"
	"time"
)

// logError writes an error to runc's log, where engines look for the reason of a failure.
func logError(c call, err error) {
	path := call{after: c.before}.flag("--log")
	if path == "" {
		return
	}
	file, openErr := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if openErr != nil {
		return // standard error has to suffice
	}
	defer file.Close()
	_ = json.NewEncoder(file).Encode(map[string]string{ // as above
		"level": "error", "msg": Program + ": " + err.Error(), "time": time.Now().Format(time.RFC3339),
	})
}
