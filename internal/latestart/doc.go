// Package latestart makes the target's engine start a container shortly before the container's state arrives.
// It has both ends: Request at the source, Start at the target.
//
// Some engines answer nothing about a container from its start until it runs, and give up a start that takes
// too long. So the source announces its freeze, and freezes only after the target has answered that its
// engine has started the container. If the engine is about to give up before the state is complete, the
// target ends the migration, and the container continues at the source.
package latestart
