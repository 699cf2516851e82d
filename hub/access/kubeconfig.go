package access

import "sigs.k8s.io/yaml"

// A Kubeconfig is the file by which kubectl comes in, with a certificate or a token.
type Kubeconfig struct {
	Server, User  string
	CA, Cert, Key []byte // PEM
	Token         string // "": by the certificate
}

// YAML is the file's text.
func (k Kubeconfig) YAML() ([]byte, error) {
	type m = map[string]any
	user := m{"client-certificate-data": k.Cert, "client-key-data": k.Key}
	if k.Token != "" {
		user = m{"token": k.Token}
	}
	return yaml.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "flotilla", "preferences": m{},
		"clusters": []m{{"name": "flotilla", "cluster": m{"server": k.Server, "certificate-authority-data": k.CA}}},
		"users":    []m{{"name": k.User, "user": user}},
		"contexts": []m{{"name": "flotilla", "context": m{"cluster": "flotilla", "user": k.User}}},
	})
}
