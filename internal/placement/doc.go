// Package placement decides where copies of a container's memory are made before it moves, and when: at the
// nodes of a known path, each in time for its deadline, or, if the path is not known, at its nearest
// neighbours, within a budget of bytes.
//
// It is pure: no I/O, no clock and no goroutine. The agent describes the current state (Situation) again
// and again, and carries out the decisions (Decision). The user's wishes (Policy) travel with the
// container.
//
// A container's memory has one tracker, so one copy at a time is live: connected, and brought up to date
// with later writes. All other copies are idle and do not change. When an idle copy becomes live, its node
// names its pages by digests, so that unchanged pages are not sent again. This package decides which copy
// is live.
//
// Known path. The copy at the next stop begins when the time until its deadline is slack times its
// predicted duration, at a rate that completes it half way to the deadline: this leaves bandwidth to
// others, and a prediction that is wrong by half does no harm. The copy is brought up to date right before
// its deadline, and from then on occasionally until the container comes. Copies at later stops are left to
// the nodes before them, which send less in vain; unless the time between two deadlines is too short: then
// the copy is made from here and left idle, and the next node only has to bring it up to date.
//
// Unknown path. The k nearest reachable nodes, by round trip, have copies, the nearest first, and each is
// brought up to date in turn, in a tenth of the time. A node that already has a copy counts as nearer than
// it is, so that two equally near nodes do not alternate. Copies at other nodes, from when the container
// was near them, stay as long as the budget allows: the farthest is removed first.
package placement
