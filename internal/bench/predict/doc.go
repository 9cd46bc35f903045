// Package predict compares predictions of migrations with their results, and mode auto's choices with the
// best mode.
package predict
