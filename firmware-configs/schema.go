package firmwareconfigs

import (
	"encoding/json"
	"sync"

	"flotilla.dev/shared/fleet"
)

// SchemaPath is the path at which the hub serves Schema.
const SchemaPath = "/schema/boardprofile.json"

// Schema is the JSON schema of a profile, for editors, generated from Parse's format and Validate's
// lists. It refuses nothing that Parse and Validate accept. `flotilla-hub profile lint` reports
// mistakes that a schema cannot express, such as a soft threshold beyond the hard one.
var Schema = sync.OnceValue(func() []byte {
	s := schemaOf(format, "")
	s["$schema"], s["title"] = "http://json-schema.org/draft-07/schema#", "Flotilla BoardProfile"
	s["description"] = "How a kind of board is recognised and treated."
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // cannot happen: it has only strings, lists and mappings
	}
	return append(text, '\n')
})

type schema = map[string]any

func one(of []string) schema { return schema{"enum": of} }

// rules are Validate's requirements at a place, in addition to the place's shape. In a path, [] is
// any entry of a list, and * any entry of a mapping.
func rules() map[string]schema {
	thresholds := func(signals []string, each schema) schema {
		keys := schema{}
		for _, s := range signals {
			keys[s] = each
		}
		return schema{"properties": keys, "additionalProperties": false}
	}
	amount := schema{"type": "string", "pattern": `^\+?[0-9.]`}
	soft := schema{"type": "object", "properties": schema{"value": amount, "for": schema{"type": "string"}},
		"required": []string{"value", "for"}, "additionalProperties": false}
	return map[string]schema{
		"":                            {"required": []string{"apiVersion", "kind", "metadata", "spec"}},
		"apiVersion":                  one([]string{fleet.Group + "/" + fleet.Version}),
		"kind":                        one([]string{"BoardProfile"}),
		"metadata":                    {"required": []string{"name"}},
		"metadata.name":               {"pattern": `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`, "maxLength": 253},
		"spec":                        {"required": []string{"match"}},
		"spec.title":                  {"maxLength": maxText},
		"spec.match":                  {"minProperties": 1},
		"spec.match.arch[]":           one(arches),
		"spec.match.memoryMiB":        {"minProperties": 1},
		"spec.match.memoryMiB.min":    {"minimum": 0},
		"spec.match.memoryMiB.max":    {"minimum": 0},
		"spec.platforms[]":            one(platforms),
		"spec.extends[]":              one(Overlays()),
		"spec.labels.*":               {"pattern": `^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$`, "maxLength": 63},
		"spec.taints[]":               {"required": []string{"key", "effect"}},
		"spec.taints[].effect":        one(effects),
		"spec.resources.evictionHard": thresholds(fleet.Signals, amount),
		"spec.resources.evictionSoft": thresholds(fleet.SoftSignals(), soft),
		"spec.resources.evictionMaxPodGracePeriod": {"minimum": 0, "maximum": maxPodGrace},
		"spec.resources.systemReserved":            thresholds(fleet.ReservableResources, amount),
		"spec.resources.agentReserved":             thresholds(fleet.ReservableResources, amount),
		"spec.resources.sharing.*":                 {"minimum": 1, "maximum": maxSharing},
		"spec.peripherals[]":                       {"required": []string{"name", "type"}},
		"spec.peripherals[].type":                  one(fleet.PeripheralTypes()),
		"spec.peripherals[].address":               {"minimum": 0x08, "maximum": 0x77},
		"spec.peripherals[].bus":                   {"minimum": 0, "maximum": 255},
		"spec.peripherals[].family":                {"pattern": `^([0-9a-f]{2})?$`},
		"spec.peripherals[].pull":                  one(append([]string{""}, fleet.Pulls...)),
		"spec.boot.backend":                        one(fleet.BootBackends),
		"spec.boot.trial":                          one(append([]string{""}, fleet.BootTrials...)),
		"spec.health.checks[]":                     one(fleet.BootChecks),
	}
}

// schemaOf converts a shape to a schema.
func schemaOf(s shape, path string) schema {
	var out schema
	switch {
	case s.keys != nil:
		keys := schema{}
		for k, x := range s.keys {
			at := k
			if path != "" {
				at = path + "." + k
			}
			keys[k] = schemaOf(x, at)
		}
		out = schema{"type": "object", "properties": keys, "additionalProperties": false}
	case s.each != nil:
		out = schema{"type": "object", "additionalProperties": schemaOf(*s.each, path+".*")}
	case s.values:
		out = schema{"type": "object", "additionalProperties": schemaOf(shape{number: s.number}, path+".*"),
			"maxProperties": maxList}
	case s.items != nil:
		out = schema{"type": "array", "items": schemaOf(*s.items, path+"[]")}
	case s.yes:
		out = schema{"type": "boolean"}
	case s.number:
		out = schema{"type": "integer"}
	default:
		out = schema{"type": "string"}
	}
	for k, v := range rules()[path] {
		out[k] = v
	}
	return out
}
