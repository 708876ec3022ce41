// Package service puts the parts of each daemon together. The cmd packages
// start one service each; allinone starts all three on one Redis.
package service
