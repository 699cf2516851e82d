package changes

import (
	"cmp"
	"regexp"
	"strings"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A phrase is a verb in the past tense, and its infinitive for a refused attempt.
type phrase struct{ did, do string }

var (
	verbs = map[string]phrase{
		"create": {"created", "create"}, "update": {"changed", "change"}, "patch": {"changed", "change"},
		"delete":           {"deleted", "delete"},
		"deletecollection": {"deleted every", "delete every"}, "revoke": {"revoked", "revoke"},
		"get": {"read", "read"}, "list": {"listed", "list"}, "watch": {"watched", "watch"},
		"restore": {"restored", "restore"}, "resume": {"resumed", "resume"},
		"renew": {"renewed", "renew"}, "connect": {"connected as", "connect as"}, "protect": {"protected", "protect"},
		"unprotect": {"unprotected", "unprotect"}, "rotate": {"rotated", "rotate"},
	}
	// deeds replace the verb and the resource where a phrase of their own reads better.
	deeds = map[string]phrase{
		"create sessions": {"logged in", "log in"}, "delete sessions": {"logged out", "log out"},
		"renew enrolments":          {"renewed the certificate of node", "renew the certificate of node"},
		"get audit":                 {"read the audit,", "read the audit,"},
		"begin audit":               {"began the chain of the audit", "begin the chain of the audit"},
		"list secrets":              {"read every secret", "read every secret"},
		"watch secrets":             {"watched every secret", "watch every secret"},
		"resume nodes":              {"resumed desired state", "resume desired state"},
		"restore backups":           {"restored the backup", "restore the backup"},
		"create enrolments":         {"joined as node", "join as node"},
		"create pods/exec":          {"ran a command in pod", "run a command in pod"},
		"create pods/attach":        {"attached to pod", "attach to pod"},
		"create pods/portforward":   {"forwarded a port to pod", "forward a port to pod"},
		"create pods/eviction":      {"evicted pod", "evict pod"},
		"create jointokens":         {"made a join token", "make a join token"},
		"create apitokens":          {"made an API token:", "make an API token:"},
		"update views":              {"saved view", "save view"},
		"update account":            {"changed their own password", "change their own password"},
		"create backups":            {"made a backup:", "make a backup:"},
		"create kubeconfigs":        {"made a kubeconfig of", "make a kubeconfig of"},
		"create clientcertificates": {"made a client certificate of", "make a client certificate of"},
	}
	things = map[string]string{"authority": "the certificate authority", "jointokens": "join token",
		"apitokens": "API token", string(state.JoinRequests): "request to join"}
)

// thingOf names one object of a resource, such as "config map".
func thingOf(resource string) string {
	if name := state.Kind(resource).GroupVersionKind().Kind; name != "" && things[resource] == "" {
		return strings.ToLower(camel.ReplaceAllString(name, "$1 $2")) // config map
	}
	return cmp.Or(things[resource], strings.TrimSuffix(resource, "s"))
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// Deed turns an audit record into words, such as "changed node pi-1" or "wanted to delete node pi-1".
func Deed(r store.Audit) string {
	p, ok := deeds[r.Verb+" "+r.Resource]
	if !ok {
		if p, ok = verbs[r.Verb]; !ok {
			p = phrase{r.Verb, r.Verb}
		}
		resource, sub, _ := strings.Cut(r.Resource, "/")
		thing := thingOf(resource)
		if sub != "" {
			thing = sub + " of " + thing
		}
		p.did, p.do = p.did+" "+thing, p.do+" "+thing
	}
	text := p.did
	if r.Code >= 400 {
		text = "wanted to " + p.do
	}
	switch {
	case r.Namespace != "" && r.Name == "":
		text += " in " + r.Namespace
	case r.Namespace != "":
		text += " " + r.Namespace + "/" + r.Name
	case r.Name != "":
		text += " " + r.Name
	}
	return text
}
