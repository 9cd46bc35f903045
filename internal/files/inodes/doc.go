// Package inodes finds programs that have remembered the inode of a file that they have open. A moved file
// has the same name and content, and another st_dev and st_ino. A program that compares these numbers takes
// the file that it opens next for another one than the file that it has open.
//
// SQLite does (os_unix.c, unixInodeInfo). The kernel does not tell the locks (fcntl(2), F_SETLK) of two
// connections of one process apart, so SQLite itself does: it keeps them by st_dev and st_ino, and looks
// these up whenever it opens a database. After a move, a connection that a process opens finds nothing there
// of the connections from before. Both can get the write lock, and rows are lost. The locks of other
// processes are safe, because the kernel has those.
//
// Locks alone (POSIX, of an open file description, flock) are no reason against a move: the kernel keeps
// them at the inode that the file has, and a restored process has all of its locks there.
package inodes
