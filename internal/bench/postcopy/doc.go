// Package postcopy measures the cost of post-copy: programs whose memory follows them are moved, and asked
// how long they waited.
package postcopy
