{{- define "wander.labels" -}}
app.kubernetes.io/name: wander-hub
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "wander.selects" -}}
app.kubernetes.io/name: wander-hub
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "wander.container" -}}
image: "{{ .Values.image.name }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
envFrom:
  - secretRef: {name: {{ .Values.secret }}}
volumeMounts:
  - {name: data, mountPath: /data}
{{- end }}

{{- define "wander.variables" -}}
- {name: WANDER_HUB_PUBLIC_URL, value: {{ required "set publicUrl: the address under which users reach the hub" .Values.publicUrl | quote }}}
- {name: FORWARDED_ALLOW_IPS, value: {{ .Values.proxies | default "127.0.0.1" | quote }}}
- {name: WANDER_HUB_HOSTS, value: '["{{ .Release.Name }}-hub"]'}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ $value | int64 | quote }}{{ else }}{{ $value | quote }}{{ end }}}
{{- end }}
{{- end }}
