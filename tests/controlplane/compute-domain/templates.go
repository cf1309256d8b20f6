package main

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

type fields = map[string]any

// text returns a string of an object, empty if it is not there.
func text(one *object, path ...string) string {
	value, _, _ := unstructured.NestedString(one.Object, path...)
	return value
}

func daemonName(uid string) string { return "computedomain-daemon-" + uid }

// claimTemplate is a template of claims of one device of a class. Its parameters are for the plugin.
func claimTemplate(namespace, name, uid, target, request, class string, parameters fields) *object {
	exactly := fields{"deviceClassName": class}
	opaque := fields{"driver": driver, "parameters": parameters}
	return &object{Object: fields{
		"apiVersion": "resource.k8s.io/v1",
		"kind":       "ResourceClaimTemplate",
		"metadata": fields{
			"namespace":  namespace,
			"name":       name,
			"finalizers": []any{domainLabel},
			"labels":     fields{domainLabel: uid, targetLabel: target},
		},
		"spec": fields{"spec": fields{"devices": fields{
			"requests": []any{fields{"name": request, "exactly": exactly}},
			"config":   []any{fields{"requests": []any{request}, "opaque": opaque}},
		}}},
	}}
}

func daemonTemplate(namespace, uid string) *object {
	parameters := fields{"apiVersion": api, "kind": "ComputeDomainDaemonConfig", "domainID": uid}
	class := "compute-domain-daemon.nvidia.com"
	return claimTemplate(namespace, daemonName(uid), uid, "Daemon", "daemon", class, parameters)
}

// workloadTemplate is that of the pods, by the name that the ComputeDomain gives it, in its namespace.
func workloadTemplate(domain *object) *object {
	uid := string(domain.GetUID())
	parameters := fields{
		"apiVersion":     api,
		"kind":           "ComputeDomainChannelConfig",
		"domainID":       uid,
		"allocationMode": text(domain, "spec", "channel", "allocationMode"),
	}
	name := text(domain, "spec", "channel", "resourceClaimTemplate", "name")
	class := "compute-domain-default-channel.nvidia.com"
	return claimTemplate(domain.GetNamespace(), name, uid, "Workload", "channel", class, parameters)
}

// daemonSet has a daemon on each node with the label of the ComputeDomain.
func daemonSet(namespace, uid string) *object {
	labels := fields{domainLabel: uid}
	var tolerations []any
	for _, effect := range []string{"NoSchedule", "NoExecute", "PreferNoSchedule"} {
		tolerations = append(tolerations, fields{"operator": "Exists", "effect": effect})
	}
	return &object{Object: fields{
		"apiVersion": "apps/v1",
		"kind":       "DaemonSet",
		"metadata": fields{
			"namespace":  namespace,
			"name":       daemonName(uid),
			"finalizers": []any{domainLabel},
			"labels":     labels,
		},
		"spec": fields{
			"selector": fields{"matchLabels": labels},
			"template": fields{
				"metadata": fields{"labels": labels},
				"spec": fields{
					"serviceAccountName": "compute-domain-daemon-service-account",
					"nodeSelector":       labels,
					"containers":         []any{container()},
					"tolerations":        tolerations,
					"resourceClaims": []any{fields{
						"name": "compute-domain-daemon", "resourceClaimTemplateName": daemonName(uid),
					}},
				},
			},
		},
	}}
}

func container() fields {
	probe := func(period, failures int64) fields {
		check := []any{"compute-domain-daemon", "-v", "$(LOG_VERBOSITY)", "check"}
		return fields{
			"exec": fields{"command": check}, "periodSeconds": period, "timeoutSeconds": int64(10),
			"failureThreshold": failures, "successThreshold": int64(1),
		}
	}
	env := []any{
		fields{"name": "LOG_VERBOSITY", "value": "4"},
		fields{"name": "MAX_NODES_PER_IMEX_DOMAIN", "value": "18"},
		fields{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
	}
	for _, one := range [][2]string{
		{"NODE_NAME", "spec.nodeName"}, {"POD_IP", "status.podIP"}, {"POD_UID", "metadata.uid"},
		{"POD_NAME", "metadata.name"}, {"POD_NAMESPACE", "metadata.namespace"},
	} {
		from := fields{"fieldRef": fields{"fieldPath": one[1]}}
		env = append(env, fields{"name": one[0], "valueFrom": from})
	}
	return fields{
		"name":           "compute-domain-daemon",
		"image":          "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0-dev",
		"command":        []any{"compute-domain-daemon", "-v", "$(LOG_VERBOSITY)", "run"},
		"env":            env,
		"resources":      fields{"claims": []any{fields{"name": "compute-domain-daemon"}}},
		"startupProbe":   probe(1, 1200),
		"livenessProbe":  probe(60, 20),
		"readinessProbe": probe(10, 1),
	}
}
