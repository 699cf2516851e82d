package main

import (
	"testing"

	"flotilla.dev/shared/commands/noticestest"
)

func TestTheLicensesAreThoseOfTheModulesThatAreLinked(t *testing.T) {
	noticestest.Check(t, "flotilla-device", "licenses.gz", *update)
}
