//go:build race

package kakuteihttp_test

const raceEnabled = true
