package shim

import (
	"encoding/json"
	"os"
	"time"
)

// logError writes an error where runc writes its own, from where engines read why it failed.
func logError(c call, err error) {
	path := call{after: c.before}.flag("--log")
	if path == "" {
		return
	}
	file, openErr := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if openErr != nil {
		return // what is on standard error has to do
	}
	defer file.Close()
	_ = json.NewEncoder(file).Encode(map[string]string{ // as above
		"level": "error", "msg": Program + ": " + err.Error(), "time": time.Now().Format(time.RFC3339),
	})
}
