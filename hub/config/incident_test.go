package config

import (
	"strings"
	"testing"
)

func TestIncidentReceiversAreValidated(t *testing.T) {
	for _, c := range []struct {
		rule string
		args []string
		want string // part of the error; "" if the settings are valid
	}{
		{"nobody", nil, ""},
		{"a webhook", []string{"--incident-webhook=https://alerts.example.org/hook/s3cret"}, ""},
		{"no URL", []string{"--incident-webhook=alerts"}, "incident-webhook"},
		{"another scheme", []string{"--incident-webhook=file:///etc/passwd"}, "incident-webhook"},
		{"a secret without a webhook", []string{"--incident-webhook-secret-file=/x"}, "incident-webhook too"},
		{"mail", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org"}, ""},
		{"mail without a sender", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-to=kari@example.org"}, "incident-mail-from"},
		{"mail without recipients", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org"}, "incident-mail-to"},
		{"a server without a port", []string{"--incident-mail-server=smtp://mail.example.org", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org"}, "incident-mail-server"},
		{"a mail user without a password", []string{"--incident-mail-server=smtp://mail.example.org:587", "--incident-mail-from=hub@example.org", "--incident-mail-to=kari@example.org", "--incident-mail-user=hub"}, "neither"},
		{"a sender without a server", []string{"--incident-mail-to=kari@example.org"}, "incident-mail-server too"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			got, _, err := load(t, c.args, nil)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			for _, s := range got.All() {
				if strings.Contains(s.Value, "s3cret") {
					t.Errorf("the display of %s is %s", s.Name, s.Value)
				}
			}
		})
	}
}

// The URL of an inventory may have a secret in its password, token or path. A file name has no
// secret.
func TestAnInventorysSecretIsNotShown(t *testing.T) {
	for where, want := range map[string]string{
		"https://hub:s3cret@machines.example.org/s3cret/list.yaml?token=s3cret": "https://machines.example.org/…",
		"/etc/flotilla/machines.yaml":                                           "/etc/flotilla/machines.yaml",
		"":                                                                      "",
	} {
		got, _, err := load(t, []string{"--inventory=" + where}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var printed strings.Builder
		if err := got.Print(&printed); err != nil || strings.Contains(printed.String(), "s3cret") {
			t.Errorf("--print-config contains the secret of %s, %v", where, err)
		}
		for _, s := range got.All() {
			if s.Name == "inventory" && s.Value != want {
				t.Errorf("the display of %s is %s", where, s.Value)
			}
		}
	}
}
