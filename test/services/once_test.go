package services

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"sync/atomic"
)

// errEnded means that a client's connection has ended, where its library would have reconnected silently.
var errEnded = errors.New("the connection has ended")

// once gives a pool of database connections a single one.
type once struct {
	driver.Connector
	conn  driver.Conn
	given atomic.Bool
}

func (o *once) Connect(context.Context) (driver.Conn, error) {
	if o.given.Swap(true) {
		return nil, errEnded
	}
	return o.conn, nil
}

// onlyConn returns a dial function for a client's library: the existing connection, and no other after it.
func onlyConn(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var given atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, errEnded
		}
		return conn, nil
	}
}
