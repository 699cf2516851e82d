package config

import (
	"strings"
	"testing"
)

func TestWhoIsToldOfIncidentsMustBeSomebody(t *testing.T) {
	for _, c := range []struct {
		rule string
		args []string
		want string // part of the mistake, "" for none
	}{
		{"nobody", nil, ""},
		{"a webhook", []string{"--incident-webhook=https://alerts.example.org/hook/s3cret"}, ""},
		{"no URL", []string{"--incident-webhook=alerts"}, "incident-webhook"},
		{"another scheme", []string{"--incident-webhook=file:///etc/passwd"}, "incident-webhook"},
		{"a secret for nobody", []string{"--incident-webhook-secret-file=/x"}, "incident-webhook too"},
		{"mail", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org"}, ""},
		{"mail from nobody", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-to=kari@example.org"}, "incident-mail-from"},
		{"mail to nobody", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org"}, "incident-mail-to"},
		{"a server without a port", []string{"--incident-mail-server=smtp://mail.example.org", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org"}, "incident-mail-server"},
		{"a login without a password", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org", "--incident-mail-user=hub"}, "neither"},
		{"an address without a server", []string{"--incident-mail-to=kari@example.org"}, "incident-mail-server too"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, _, err := load(t, c.args, nil)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v", err)
			}
			for _, s := range got.All() {
				if strings.Contains(s.Value, "s3cret") {
					t.Errorf("%s is shown as %s", s.Name, s.Value)
				}
			}
		})
	}
}
