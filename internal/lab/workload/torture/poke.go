package torture

import (
	"runtime/debug"
)

// pokeAt writes a byte to a mapping. A write beyond the file's current end fails: the kernel sends a
// signal, which becomes a panic here.
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
