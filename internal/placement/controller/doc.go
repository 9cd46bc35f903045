// Package controller carries out placement policies: it has copies of this node's containers made where
// package placement decides, drops others, and hands a container's policy over to the node to which the
// container has moved.
//
// A follower observes and acts for one container, in steps. The observer measures what a decision needs.
// A policy is no migration: it has no commit, and a lost policy costs copies and nothing else. The package
// makes no copy itself (see package staging), and knows neither engines nor the steps of a migration; Config
// has what it needs of the node.
package controller
