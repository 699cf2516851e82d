package access

import (
	"strings"

	"sigs.k8s.io/yaml"

	"flotilla.dev/shared/wire"
)

// A Kubeconfig is a file for kubectl, with a certificate or a token.
type Kubeconfig struct {
	Server, User  string
	Others        []string // URLs of all hubs of the database; may include Server
	CA, Cert, Key []byte   // PEM
	Token         string   // "": authenticate with the certificate
}

// YAML returns the file. Its context flotilla uses Server. kubectl never tries a second server, so
// each other hub has a context flotilla@HOST:PORT.
func (k Kubeconfig) YAML() ([]byte, error) {
	type m = map[string]any
	user := m{"client-certificate-data": k.Cert, "client-key-data": k.Key}
	if k.Token != "" {
		user = m{"token": k.Token}
	}
	var clusters, contexts []m
	for i, server := range distinct(append([]string{k.Server}, k.Others...)) {
		name := "flotilla"
		if i > 0 {
			name += "@" + strings.TrimPrefix(server, "https://")
		}
		clusters = append(clusters, m{"name": name, "cluster": m{"server": server, "certificate-authority-data": k.CA}})
		contexts = append(contexts, m{"name": name, "context": m{"cluster": name, "user": k.User}})
	}
	return yaml.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "flotilla", "preferences": m{},
		"clusters": clusters, "users": []m{{"name": k.User, "user": user}}, "contexts": contexts,
	})
}

// JoinLine returns the command to join with a token. The device tries the hubs in the order of
// hubs.
func JoinLine(hubs []string, t wire.JoinToken) string {
	all := distinct(hubs)
	return "flotilla-device join " + strings.Join(all[:min(len(all), wire.MaxBrokers)], ",") + " --token " + t.Text()
}

// distinct returns the URLs in their order, without duplicates.
func distinct(hubs []string) (all []string) {
	seen := map[string]bool{}
	for _, h := range hubs {
		if !seen[h] {
			seen[h] = true
			all = append(all, h)
		}
	}
	return all
}
