// Package fsys reads and sets everything about single files and directories, below open directories: entries
// with all of their attributes, listings, walks, and holes. It follows no link and opens no device. It knows
// no copy.
package fsys
