package services

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"sync/atomic"
)

// errEnded says that a client's connection has ended, where its library would have made another one in
// silence.
var errEnded = errors.New("the connection has ended")

// once gives a pool of database connections the one that it is to have, and no other.
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

// onlyConn dials for a client's library: the connection that there is, and no other after it.
func onlyConn(conn net.Conn) func(context.Context, string, string) (net.Conn, error) {
	var given atomic.Bool
	return func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return nil, errEnded
		}
		return conn, nil
	}
}
