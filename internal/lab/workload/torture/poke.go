package torture

import (
	"runtime/debug"
)

// pokeAt writes a byte to a mapping. What is behind the file's end by now cannot be written: the
// kernel says so by a signal, which becomes a panic here.
func pokeAt(mapping []byte, at int, value byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = nil
		}
	}()
	mapping[at] = value
	return err
}
