// Package archtest holds no code for others. Its tests enforce how this module
// is built: which package may import which, where SQL, environment variables
// and process exits may stand, and that every exported name is documented.
//
// The rules are in rules_test.go, one function each. They read the sources with
// go/parser alone, so they see every file, whatever its build constraints, and
// need nothing but the standard library. To change a rule, change its entry in
// the list rules and its cases in violations_test.go, which prove that the rule
// can fail.
package archtest
