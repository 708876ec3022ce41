// Package config turns flags and environment variables into one typed struct
// per binary, with defaults applied and every value checked before anything
// connects.
//
// # What is true
//
//   - There is one table of settings (table.go). Flags, variables, --help,
//     defaults and checks all follow from its rows; a default goes through
//     the same parser as a value that a user gives.
//   - A setting --redis-url is also the variable PAREDAO_REDIS_URL. The flag
//     wins; an empty variable counts as unset. A value that is overridden is
//     not looked at.
//   - This is the only package that reads the environment. It reads it from a
//     list that it is handed (see [Environ]), so tests need not change their
//     own.
//   - No error, warning or help text holds a secret: a redis-url is shown
//     without its password, and errors of net/url, which embed the whole URL,
//     are never passed on.
//
// # What may fail, and what then
//
// A wrong value or flag is a [*UsageError]: one line that names the setting as
// the user gave it, the value, and what is allowed. Its exit code is 2.
// --help and --version print to stdout and return [ErrHelp], exit code 0.
package config
