//go:build !race

package kakuteihttp_test

const raceEnabled = false
