{{/* Labels of all objects of a component. Takes [root, component]. */}}
{{- define "nvlink-domains.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
app.kubernetes.io/part-of: nvlink-domains
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{ include "nvlink-domains.selector" . }}
{{- end }}

{{/* Labels of pods: without versions, so that a new chart restarts nothing that it does not change.
     Takes [root, component]. */}}
{{- define "nvlink-domains.podLabels" -}}
app.kubernetes.io/part-of: nvlink-domains
{{ include "nvlink-domains.selector" . }}
{{- end }}

{{/* Labels that select the pods of a component. They never change. Takes [root, component]. */}}
{{- define "nvlink-domains.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
{{- end }}

{{/* Labels of a Namespace with a Pod Security level. Takes the level. */}}
{{- define "nvlink-domains.podSecurity" -}}
pod-security.kubernetes.io/enforce: {{ . }}
pod-security.kubernetes.io/audit: {{ . }}
pod-security.kubernetes.io/warn: {{ . }}
{{- end }}

{{/* Reference of an image. Takes [root, image]. */}}
{{- define "nvlink-domains.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "nvlink-domains.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Namespace of the exporter. */}}
{{- define "nvlink-domains.exporterNamespace" -}}
{{ .Values.exporter.namespace.name | default .Release.Namespace }}
{{- end }}

{{/* Namespaces without rules, besides kube-system, as JSON. Never `default`, where anybody may create
     pods. */}}
{{- define "nvlink-domains.exempt" -}}
{{- $own := list -}}
{{- if ne .Release.Namespace "default" -}}
{{- $own = append $own .Release.Namespace -}}
{{- end -}}
{{- if .Values.exporter.enabled -}}
{{- if eq (include "nvlink-domains.exporterNamespace" .) "default" -}}
{{- fail "exporter.namespace.name is the namespace default, but no rule applies to the pods of the exporter's namespace: name another one" -}}
{{- end -}}
{{- $own = append $own (include "nvlink-domains.exporterNamespace" .) -}}
{{- end -}}
{{- concat $own .Values.exemptNamespaces | uniq | toJson -}}
{{- end }}

{{/* The same, as the value of --exempt-namespace. */}}
{{- define "nvlink-domains.exemptFlag" -}}
{{ include "nvlink-domains.exempt" . | fromJsonArray | join "," }}
{{- end }}

{{/* Whether the API server knows DomainClass. On the first installation the CRD comes with this
     release, and Helm looks up the kinds of all objects before it creates any. */}}
{{- define "nvlink-domains.knowsClasses" -}}
{{- if or .Release.IsUpgrade (.Capabilities.APIVersions.Has "nvlink-domains.io/v1alpha1") }}true{{ end -}}
{{- end }}

{{/* NetworkPolicy: who may scrape. Takes [root, port]. */}}
{{- define "nvlink-domains.scrapers" -}}
{{- $root := index . 0 -}}
- ports: [{port: {{ index . 1 }}, protocol: TCP}]
{{- with $root.Values.networkPolicy.scrapers }}
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{/* NetworkPolicy: the way to the API servers. Addresses come from the environment, so there is
     no need for DNS. */}}
{{- define "nvlink-domains.toApiServers" -}}
- ports:
  {{- range .Values.networkPolicy.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
  {{- end }}
{{- with .Values.networkPolicy.apiServerCidrs }}
  to:
  {{- range . }}
    - ipBlock: {cidr: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* What each platform needs to give the driver's library and devices to the exporter. */}}
{{- define "nvlink-domains.platform" -}}
{{- $all := dict "NVIDIA_VISIBLE_DEVICES" "all" "NVIDIA_DRIVER_CAPABILITIES" "utility" -}}
{{- $presets := dict
  "operator" (dict "runtimeClassName" "nvidia" "env" $all)
  "talos" (dict "runtimeClassName" "nvidia" "env" $all)
  "host" (dict "env" $all)
  "gke" (dict "privileged" true
    "env" (dict "LD_LIBRARY_PATH" "/usr/local/nvidia/lib64")
    "mounts" (list (dict "name" "driver" "path" "/home/kubernetes/bin/nvidia" "type" "Directory" "mountPath" "/usr/local/nvidia")))
  "bottlerocket" (dict
    "env" (dict "NVIDIA_VISIBLE_DEVICES" "/var/run/nvidia-container-devices" "NVIDIA_DRIVER_CAPABILITIES" "utility")
    "mounts" (list (dict "name" "all-gpus" "path" "/dev/null" "type" "CharDevice" "mountPath" "/var/run/nvidia-container-devices/all")))
  "none" (dict) -}}
{{- index $presets .Values.exporter.platform | toJson -}}
{{- end }}
