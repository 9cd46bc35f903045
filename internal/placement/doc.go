// Package placement decides where copies of a container's memory are made before it moves, and when: at
// the nodes of a path that is known, each in time for its deadline, or, where nobody knows where it
// will go, at its nearest neighbours, within a budget of bytes.
//
// It is pure: no I/O, no clock and no goroutine. The agent tells it what there is (Situation) again
// and again, and carries out what it decides (Decision). What is wanted (Policy) travels with the
// container.
//
// A container's memory has one tracker, so one copy at a time is live: connected, and brought up to
// date by what was written since. All others are idle: they stay as they are, and when the turn of an
// idle copy comes, the node that keeps it names its pages by digests, so that unchanged pages do not
// travel again. This package decides which copy is live.
//
// Known path. The copy at the next stop is begun when slack times of what it is predicted to take
// are left until its deadline, at a rate with which it is whole half way there: the link is left to
// others, and a prediction that is wrong by half does no harm. It is brought up to date right
// before its deadline, and from then on now and then until the container comes. Later stops are
// left to the nodes before them, from where less is sent in vain; unless the time between two
// deadlines is too short for that: then the copy is made from here and left idle, and the next node only
// has to bring it up to date.
//
// Unknown path. The k nearest that can be reached, by round trip, have copies, the nearest first,
// and each is brought up to date in turn, with a tenth of the time. A node that has a copy already
// counts as nearer than it is, so that two that are as near do not take turns. Copies at other
// nodes, where the container was near before, stay as long as the budget allows: the farthest goes
// first.
package placement
