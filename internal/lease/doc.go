// Package lease knows to which node an address of the pool belongs, and returns an address to that node when
// its container is gone.
//
// The node that an address belongs to may be down when the container goes, and this agent may end before a
// container is made for which it has taken an address. So both are noted in a file first. Who has a container
// is not for this package: the node that is told judges whether it believes the one that tells.
package lease
