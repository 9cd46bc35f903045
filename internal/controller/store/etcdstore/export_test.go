package etcdstore

import "github.com/godwit/godwit/internal/controller/store"

// FallSilent lets a leader renew its lease no more, as if it hung.
func FallSilent(of store.Term) { of.(*term).end() }
