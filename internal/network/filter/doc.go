// Package filter is the packet filter of a node: what may come from the tunnel and from containers, which
// ingress marks connections get, what is masqueraded, and what is forwarded to containers on bridges.
//
// A Filter is told of peers and containers, and replaces its tables in one transaction whenever that
// changes. So the tables follow from what the Filter knows, whoever called last. Its lock is held during
// the transaction, and no other lock is taken under it. A Suppression, with a table and a lock of its own,
// keeps packets of containers that have not arrived yet off the bridges. Package network says why the rules
// are as they are.
package filter
