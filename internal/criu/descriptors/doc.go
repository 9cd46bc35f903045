// Package descriptors lists the open files of other processes, and reaches their TCP sockets.
package descriptors
