{{- define "nvlink-domains.exporterArgs" -}}
{{- $exporter := .Values.exporter -}}
- serve
- {{ print "--source=" ($exporter.source) | quote }}
- {{ print "--collection-interval=" ($exporter.collectionInterval) | quote }}
- {{ print "--log-format=" (.Values.logFormat) | quote }}
{{- if $exporter.allocations.enabled }}
- --kubelet-socket=/var/lib/kubelet/pod-resources/kubelet.sock
- --kubernetes
{{- else }}
- --kubelet-socket=none
{{- end }}
{{- if $exporter.publish }}
- --publish
{{- end }}
{{- if $exporter.aliasLabels }}
- --alias-labels
{{- end }}
{{- if $exporter.webConfig.secret }}
- --web.config.file=/etc/nvlink-exporter/web.yml
{{- end }}
{{- if $exporter.calibration.configMap }}
- --calibration=/etc/nvlink-calibration/calibration.json
{{- end }}
{{- range $exporter.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* A password or a client certificate protects every path, and a probe has neither. */}}
{{- define "nvlink-domains.exporterProbes" -}}
{{- $guarded := .Values.exporter.webConfig.secret -}}
livenessProbe:
  {{- if $guarded }}
  tcpSocket: {port: metrics}
  {{- else }}
  httpGet: {path: /livez, port: metrics}
  {{- end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{- if $guarded }}
  tcpSocket: {port: metrics}
  {{- else }}
  httpGet: {path: /readyz, port: metrics}
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "nvlink-domains.exporterMounts" -}}
{{- $exporter := .Values.exporter -}}
{{- $platform := include "nvlink-domains.platform" . | fromJson -}}
{{- if or $exporter.allocations.enabled $exporter.webConfig.secret $exporter.calibration.configMap $platform.mounts }}
volumeMounts:
  {{- if $exporter.allocations.enabled }}
  # The directory, not the socket: a kubelet that restarts creates a new socket.
  - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
  {{- end }}
  {{- if $exporter.webConfig.secret }}
  - {name: web-config, mountPath: /etc/nvlink-exporter, readOnly: true}
  {{- end }}
  {{- if $exporter.calibration.configMap }}
  - {name: calibration, mountPath: /etc/nvlink-calibration, readOnly: true}
  {{- end }}
  {{- range $platform.mounts }}
  - {name: {{ .name }}, mountPath: {{ .mountPath }}, readOnly: true}
  {{- end }}
{{- end }}
{{- end }}

{{- define "nvlink-domains.exporterVolumes" -}}
{{- $exporter := .Values.exporter -}}
{{- $platform := include "nvlink-domains.platform" . | fromJson -}}
{{- if or $exporter.allocations.enabled $exporter.webConfig.secret $exporter.calibration.configMap $platform.mounts }}
volumes:
  {{- if $exporter.allocations.enabled }}
  - name: pod-resources
    hostPath: {path: {{ $exporter.allocations.directory | quote }}, type: Directory}
  {{- end }}
  {{- with $exporter.webConfig.secret }}
  - name: web-config
    secret: {secretName: {{ . | quote }}, defaultMode: 0440}
  {{- end }}
  {{- with $exporter.calibration.configMap }}
  - name: calibration
    configMap: {name: {{ . | quote }}, optional: true}
  {{- end }}
  {{- range $platform.mounts }}
  - name: {{ .name }}
    hostPath: {path: {{ .path }}, type: {{ .type }}}
  {{- end }}
{{- end }}
{{- end }}

{{/* Two terms for each label of GPU nodes: the GPU operator has not set its label, or has set it to true.
     It has another value while the operator upgrades the driver. */}}
{{- define "nvlink-domains.exporterAffinity" -}}
{{- $exporter := .Values.exporter -}}
{{- $terms := $exporter.nodeSelectorTerms -}}
{{- $client := "nvidia.com/gpu.deploy.client" -}}
{{- $free := list (dict "key" $client "operator" "DoesNotExist") (dict "key" $client "operator" "In" "values" (list "true")) -}}
{{- $both := list -}}
{{- range $term := ($terms | default (list dict)) -}}
{{- range $free -}}
{{- $expressions := append ($term.matchExpressions | default list) . -}}
{{- $both = append $both (merge (dict "matchExpressions" $expressions) $term) -}}
{{- end -}}
{{- end -}}
{{- $required := dict "nodeSelectorTerms" $both -}}
{{- $nodes := dict "requiredDuringSchedulingIgnoredDuringExecution" $required -}}
affinity:
  {{- merge (deepCopy $exporter.affinity) (dict "nodeAffinity" $nodes) | toYaml | nindent 2 }}
{{- end }}
