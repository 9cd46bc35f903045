// Package records is the codec of copies: streams of blocks, records in them, and the rules of a round. It
// checks and bounds everything that it reads, and knows no file system.
package records
