package admin

import (
	"context"
	"time"
)

// A House is what the hub knows of itself, beside its fleet.
type House interface {
	State(ctx context.Context) (HouseState, error)
	// Audits lists who changed what, newest first.
	Audits(ctx context.Context, q AuditQuery) ([]AuditRecord, error)
	// BackUp writes a backup now and returns its file.
	BackUp(ctx context.Context) (file string, err error)
}

// People are those who may come in.
type People interface {
	CreateUser(ctx context.Context, p NewPerson) error
	// ChangeUser gives a person what is set of it: a role, a password.
	ChangeUser(ctx context.Context, p NewPerson) error
	DeleteUser(ctx context.Context, name string) error
}

// Tokens are how devices and programs come in.
type Tokens interface {
	RevokeJoinToken(ctx context.Context, id string) error
	// CreateAPIToken returns the token, which is shown this once.
	CreateAPIToken(ctx context.Context, t NewAPIToken) (string, error)
	RevokeAPIToken(ctx context.Context, id string) error
}

// A NewPerson is somebody who is let in, or what changes of them.
type NewPerson struct{ Name, Password, Role string }

// A NewAPIToken lets a program in, as a person.
type NewAPIToken struct {
	User, Note string
	Life       time.Duration
}

// A HouseState is what the settings show.
type HouseState struct {
	People       []Person
	JoinTokens   []JoinToken
	APITokens    []APIToken
	Certificates []Certificate
	Backups      []Backup // newest first
	NextBackup   time.Time
	Facts        []Fact // addresses and versions
	Kept         []Fact // how long what is kept
	Settings     []Setting
}

// A Person may come in with a password.
type Person struct {
	Name, Role string
	Created    time.Time
}

// A JoinToken lets devices join.
type JoinToken struct {
	ID, Site, Node, By string
	Uses, Used         int
	Created, Expires   time.Time
	Revoked            time.Time // zero: it is not
}

// An APIToken lets a program in.
type APIToken struct {
	ID, User, Note   string
	Created, Expires time.Time
}

// A Certificate ends some day.
type Certificate struct {
	Of, Renewal string
	Until       time.Time
}

// A Backup is a copy of the database.
type Backup struct {
	File  string
	At    time.Time
	Bytes int64
}

// A Fact is something that is so.
type Fact struct{ Name, Value string }

// A Setting is what serve was started with.
type Setting struct{ Name, Value, From string }

// An AuditQuery says which records are wanted.
type AuditQuery struct {
	Before  int64    // older than this record; 0: from the newest on
	Words   []string // all of them, in lower case
	Refused bool     // only what was refused
	Via     []string // only what came in one of these ways; none: in any
	Limit   int
}

// An AuditRecord is one change that somebody made, or was refused.
type AuditRecord struct {
	ID          int64
	At          time.Time
	Who, Source string
	Via         string // page, token, certificate, API, command line, join token, password, setup link
	Verb, What  string
	Code        int // as HTTP's
	Message     string
}
