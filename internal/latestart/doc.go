// Package latestart has the target's engine start a container shortly before its state comes, at both ends of
// a migration.
//
// Some engines tell nobody anything from the start of a container until it runs, and give it up if that takes
// long. So the source says when its freeze is near (Request), and does not freeze before the target has
// answered that its engine has started the container (Start). If the engine is about to give it up before all
// of the state is there, the migration is given up, and the container goes on at the source.
package latestart
