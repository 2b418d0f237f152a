// Starts Swagger UI at /docs. Where an example stands for a value that only an earlier answer has, such as a lease_id, the request
// gets that value: so the examples work one after the other.
const STANDS_FOR = {
    lease_id: 'the-lease_id-of-the-acquire',
    stamp: 'ed00c3a34ce12df209e466feee905cbd',
    token: 1784000000000000,
}
const EXAMPLE_ID = '7d88c00ddeafbae02d6198a43e38f30a'
// By `locks`, `multilocks` or `operations`.
const last = { locks: {}, multilocks: {}, operations: {} }

function of(url) {
    return last[new URL(url, location.href).pathname.split('/')[2]] ?? {}
}

function remember(response) {
    if (response.ok && response.obj) Object.assign(of(response.url), response.obj)
    return response
}

function fillIn(request) {
    const known = of(request.url)
    if (known.id) request.url = request.url.replace(EXAMPLE_ID, known.id)
    if (typeof request.body !== 'string') return request
    try {
        const body = JSON.parse(request.body)
        const names = Object.keys(STANDS_FOR).filter((name) => body[name] === STANDS_FOR[name] && name in known)
        names.forEach((name) => (body[name] = known[name]))
        if (names.length > 0) request.body = JSON.stringify(body)
    } catch {
        // The node says what is wrong with the body.
    }
    return request
}

window.onload = () => {
    window.ui = SwaggerUIBundle({
        url: '/openapi.json',
        dom_id: '#swagger-ui',
        deepLinking: true,
        displayRequestDuration: true,
        tryItOutEnabled: true,
        validatorUrl: 'none',
        layout: 'StandaloneLayout',
        presets: [SwaggerUIBundle.presets.apis, SwaggerUIStandalonePreset],
        plugins: [SwaggerUIBundle.plugins.DownloadUrl],
        requestInterceptor: fillIn,
        responseInterceptor: remember,
    })
}
