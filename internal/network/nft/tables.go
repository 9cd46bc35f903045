package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TableName is the name of our tables in the packet filter. Other programs' tables are not touched.
const TableName = "godwit"

// NewTable describes an empty table that replaces any existing one: adding first makes deleting succeed.
func NewTable(conn *nftables.Conn, family nftables.TableFamily) *nftables.Table {
	table := &nftables.Table{Name: TableName, Family: family}
	conn.AddTable(table)
	conn.DelTable(table)
	return conn.AddTable(table)
}

// Open opens the packet filter of a namespace.
func Open(ns netns.NsHandle) (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return nil, fmt.Errorf("open the packet filter: %w", err)
	}
	return conn, nil
}

// CloseLater closes the connection without waiting. A change is in force once it is answered; closing waits
// some 10 ms until nobody uses what was removed, and an arriving container is frozen meanwhile.
func CloseLater(conn *nftables.Conn) {
	go func() { _ = conn.CloseLasting() }() // an error loses nothing
}

// Unsupported reports whether an error means that the kernel lacks a kind of table.
func Unsupported(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
