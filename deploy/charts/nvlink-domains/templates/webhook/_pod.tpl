{{- define "nvlink-domains.webhookArgs" -}}
{{- $webhook := .Values.webhook -}}
- serve
- {{ printf "--service=%s/nvlink-webhook" .Release.Namespace | quote }}
{{- if $webhook.certManager.enabled }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --ca-file=/tls/ca.crt
{{- else }}
- {{ printf "--ca-secret=%s/%s" .Release.Namespace $webhook.caSecret | quote }}
{{- end }}
{{- if $webhook.clientCa.configMap }}
- {{ print "--client-ca-file=/clients/" $webhook.clientCa.key | quote }}
{{- end }}
- {{ print "--exempt-namespace=" (include "nvlink-domains.exemptFlag" .) | quote }}
{{- if .Values.policies.enabled }}
- --check-policies
{{- end }}
- {{ print "--lease-namespace=" (.Release.Namespace) | quote }}
# The kube-proxies need some seconds to learn that a replica stops; until then it serves.
- {{ print "--drain-seconds=" ($webhook.drainSeconds) | quote }}
- {{ print "--rack-label=" ($webhook.rackLabel) | quote }}
- {{ print "--zone-label=" ($webhook.zoneLabel) | quote }}
- {{ print "--log=" ($webhook.log) | quote }}
- {{ print "--log-format=" ($webhook.logFormat) | quote }}
{{- range $webhook.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "nvlink-domains.webhookMounts" -}}
{{- $webhook := .Values.webhook -}}
{{- if or $webhook.certManager.enabled $webhook.clientCa.configMap }}
volumeMounts:
  {{- if $webhook.certManager.enabled }}
  - {name: tls, mountPath: /tls, readOnly: true}
  {{- end }}
  {{- if $webhook.clientCa.configMap }}
  - {name: clients, mountPath: /clients, readOnly: true}
  {{- end }}
{{- end }}
{{- end }}

{{- define "nvlink-domains.webhookVolumes" -}}
{{- $webhook := .Values.webhook -}}
{{- if or $webhook.certManager.enabled $webhook.clientCa.configMap }}
volumes:
  {{- if $webhook.certManager.enabled }}
  - name: tls
    secret: {secretName: nvlink-webhook-tls, defaultMode: 0440}
  {{- end }}
  {{- with $webhook.clientCa.configMap }}
  - name: clients
    configMap: {name: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- end }}
